"""The tasks of Django's documentation (topics/tasks), and functions that are no tasks."""

from collections.abc import Sequence

from django.core.mail import send_mail

from queue_core.django.tasks_api import TaskContext
from tests.queue_core.django_backend.shop.models import Thing
from tests.support.fleet.odd_exceptions import raise_all

try:
    from django.tasks import task
except ModuleNotFoundError:
    from django_tasks import task

attempts: list[tuple[int, str]] = []
doubled: list[dict[str, int]] = []
found: list[int] = []


@task
def email_users(emails: Sequence[str], subject: str, message: str) -> int:
    return send_mail(subject=subject, message=message, from_email=None, recipient_list=emails)


@task(queue_name="emails")
def email_users_soon(emails: Sequence[str], subject: str, message: str) -> int:
    return send_mail(subject=subject, message=message, from_email=None, recipient_list=emails)


@task(takes_context=True)
def email_users_with_context(context: TaskContext, emails: Sequence[str], subject: str, message: str) -> int:
    attempts.append((context.attempt, context.task_result.id))
    return send_mail(subject=subject, message=message, from_email=None, recipient_list=emails)


@task
def double_dictionary(key: int) -> dict[int, int]:
    doubled.append({str(key): key * 2})
    return {key: key * 2}


@task
def my_task(thing_num: int) -> None:
    found.append(Thing.objects.get(num=thing_num).num)


@task
async def failing_task(subject: str) -> None:
    if not subject:
        raise ValueError("Subject cannot be empty.")


class PaymentDeclinedError(Exception):
    """An error of the project's own."""


@task
def declined_payment() -> None:
    raise PaymentDeclinedError("no funds")


@task
def raises(number: int) -> None:
    raise_all(number)


def wipe_everything() -> None:
    """Do harm: never declared a task."""
    raise AssertionError("a stranger's path was called")
