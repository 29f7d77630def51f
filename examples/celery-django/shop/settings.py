"""Django's settings; those of Celery begin with CELERY_."""

from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent
SECRET_KEY = "not a secret: an example"  # noqa: S105
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "testserver"]
INSTALLED_APPS = ["orders"]
ROOT_URLCONF = "shop.urls"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "shop.db"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True

CELERY_BROKER_URL = "towline+http://127.0.0.1:7878"  # line 1: was redis://127.0.0.1:6379/0
CELERY_TASK_ACKS_LATE = True  # line 2: a task whose worker dies runs again

CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BEAT_SCHEDULE = {"chase": {"task": "orders.tasks.chase", "schedule": 5.0}}
