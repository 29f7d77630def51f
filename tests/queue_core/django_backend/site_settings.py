"""Settings of the site."""

import django

SECRET_KEY = "of a test"
USE_TZ = True
TIME_ZONE = "UTC"  # it becomes that of the whole process
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["tests.queue_core.django_backend.shop"]
if django.VERSION < (6,):
    INSTALLED_APPS.append("django_tasks")
EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
DEFAULT_FROM_EMAIL = "shop@example.org"
TASKS = {
    "default": {
        "BACKEND": "queue_core.django.Backend",
        "QUEUES": ["default", "emails"],
        "OPTIONS": {"url": "memory:"},
    },
    "at-once": {
        "BACKEND": "queue_core.django.Backend",
        "QUEUES": ["default"],
        "ENQUEUE_ON_COMMIT": False,
        "OPTIONS": {"url": "memory:", "max_leases": 1},
    },
}
