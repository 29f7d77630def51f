"""Django's settings; TASKS names Towline."""

from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent
SECRET_KEY = "not a secret: an example"  # noqa: S105
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "testserver"]
INSTALLED_APPS = ["django_tasks", "orders"]  # on Django 6 without django_tasks
ROOT_URLCONF = "shop.urls"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "shop.db"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True

TASKS = {
    "default": {
        "BACKEND": "queue_core.django.Backend",
        "QUEUES": ["default"],
        "OPTIONS": {"url": "http://127.0.0.1:7878"},
    }
}
