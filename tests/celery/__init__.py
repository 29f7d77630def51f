"""The laboratory of "change the URL": `python3 -m tests.celery --all` shows claim after claim, with figure and bar."""
