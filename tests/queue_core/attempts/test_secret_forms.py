"""What looks like a secret is masked in every text, command line and URL."""

import pytest

from queue_core.attempts.secret_forms import is_secret_name, masked_command, masked_text, masked_value
from queue_core.config.store_urls import masked

LONG = "0123456789abcdefABCDEF0123456789abcdefAB"

TOKENS = {
    "JWT": f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIx{LONG}.{LONG}",
    "GitHub": f"ghp_{LONG}",
    "GitHub, fine-grained": f"github_pat_{LONG}",
    "GitLab": "glpat-Zx81Zx81Zx81Zx81Zx81",
    "Stripe": f"sk_live_{LONG}",
    "Stripe, restricted": f"rk_live_{LONG}",
    "Stripe, a webhook": f"whsec_{LONG}",
    "OpenAI": f"sk-proj-{LONG}",
    "Slack": "xoxb-123456789012-Zx81Zx81Zx81",
    "AWS": "AKIAZX81ZX81ZX81ZX81",
    "Google": f"AIza{LONG[:35]}",
    "Google, OAuth": f"ya29.{LONG}",
    "npm": f"npm_{LONG[:36]}",
    "PyPI": f"pypi-AgEIcHlwaS5vcmc{LONG}",
    "Docker": f"dckr_pat_{LONG}",
    "SendGrid": f"SG.{LONG[:22]}.{LONG}",
    "Twilio": "SK0123456789abcdef0123456789abcdef",
    "Mailgun": "key-0123456789abcdef0123456789abcdef",
    "HuggingFace": f"hf_{LONG}",
    "DigitalOcean": f"dop_v1_{LONG}",
    "Shopify": f"shpat_{LONG}",
    "Vault": f"hvs.{LONG}",
    "Telegram": f"123456789:AA{LONG}",
    "Databricks": "dapi0123456789abcdef0123456789abcdef",
}


@pytest.mark.parametrize("token", TOKENS.values(), ids=TOKENS.keys())
def test_a_token_is_known_by_its_form(token: str) -> None:
    assert masked_text(f"bad key '{token}' given") == "bad key '***' given"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY----- x", "*** x"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE, cut", "***"),
        ("https://hooks.slack.com/services/T0/B0/XX failed", "https://hooks.slack.com/services/*** failed"),
        ("Server=db;User Id=sa;Password=hunter2;Encrypt=yes", "Server=db;User Id=sa;Password=***;Encrypt=yes"),
        ("DefaultEndpointsProtocol=https;AccountKey=abc+/==;x", "DefaultEndpointsProtocol=https;AccountKey=***;x"),
        ("Cookie: sessionid=abc; csrftoken=def", "Cookie: ***"),
        ("{'Authorization': 'Bearer abcdef'}", "{'Authorization': 'Bearer ***'}"),
        ("Proxy-Authorization: Basic dXNlcjpwdw==", "Proxy-Authorization: Basic ***"),
        (r'{"body": "{\"password\": \"hunter2\"}"}', r'{"body": "{\"password\": \"***\"}"}'),
        ("password: b'hunter2'", "password: b'***'"),
        ("AWS_SECRET_ACCESS_KEY=abc/def+ghi", "AWS_SECRET_ACCESS_KEY=***"),
        (
            "Command '['psql', '--password', 'hunter2', '-h', 'db']'",
            "Command '['psql', '--password', '***', '-h', 'db']'",
        ),
        ("curl -u ann:hunter2 https://x", "curl -u ann:*** https://x"),
        ("tool --api-key=abc --db-password hunter2 -v", "tool --api-key=*** --db-password *** -v"),
        ("https://x/y?sig=abc&code=def&page=2", "https://x/y?sig=***&code=***&page=2"),
        ("CREATE ROLE a PASSWORD 'hunter2'", "CREATE ROLE a PASSWORD ***"),
        ("amqp://user%3Ahunter2%40broker/x", "amqp://***broker/x"),
        ("the token expired; a password is needed", "the token expired; a password is needed"),
        ("--password-file /run/secrets/pw", "--password-file /run/secrets/pw"),
        ("no such key: thumbs/1.png", "no such key: thumbs/1.png"),
    ],
)
def test_a_secret_is_known_by_what_stands_before_it(text: str, shown: str) -> None:
    assert masked_text(text) == shown


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["psql", "postgresql://u:hunter2@db/x"], ["psql", "postgresql://***@db/x"]),
        (["tool", "--password", "hunter2"], ["tool", "--password", "***"]),
        (["tool", "--db.auth-token", "hunter2", "x"], ["tool", "--db.auth-token", "***", "x"]),
        (["tool", "--password=hunter2", "-v"], ["tool", "--password=***", "-v"]),
        (["tool", "--api-key", "-v"], ["tool", "--api-key", "-v"]),
        (["/usr/bin/mysql", "-phunter2", "-u", "root"], ["/usr/bin/mysql", "-p***", "-u", "root"]),
        (["sshpass", "-p", "hunter2", "ssh", "-p", "22"], ["sshpass", "-p", "***", "ssh", "-p", "***"]),
        (["redis-cli", "-a", "hunter2"], ["redis-cli", "-a", "***"]),
        (["curl", "-u", "ann:hunter2"], ["curl", "-u", "ann:***"]),
        (["env", "PGPASSWORD=hunter2", "psql"], ["env", "PGPASSWORD=***", "psql"]),
        (
            ["sh", "-c", "TOKEN=hunter2 exec tool --secret 'hunter 2'"],
            ["sh", "-c", "TOKEN=*** exec tool --secret '***'"],
        ),
        (["curl", "-H", "Authorization: Bearer abcdef"], ["curl", "-H", "Authorization: Bearer ***"]),
        (["mkdir", "-p", "folder"], ["mkdir", "-p", "folder"]),
        (["python", "-m", "shop.worker", "{worker}"], ["python", "-m", "shop.worker", "{worker}"]),
        ([], []),
    ],
)
def test_a_command_line_shows_no_secret(command: list[str], shown: list[str]) -> None:
    assert masked_command(command) == shown


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:hunter2@db/x",
        "postgresql://ann:hun%74er2@db/x",
        "postgresql://ann%3Ahunter2@db/x",
        "postgresql://db/x?user=ann&password=hunter2",
        "postgresql:///x?host=/run/pg&password=hunter2&sslmode=require",
        "postgresql://db/x?sslpassword=hunter2",
        "host=db user=ann password=hunter2 dbname=x",
        "host=db password = 'hunter2 \\' hunter2' dbname=x",
        "redis://:hunter2@cache/0",
        "rediss://:hunter2@cache:6380/0",
        "redis+unix://:hunter2@/run/redis.sock",
        "redis+unix:///run/redis.sock?password=hunter2",
        "redis+sentinel://:hunter2@a:1,b:2/mymaster?sentinel_password=hunter2",
        "redis://cache/0?token=hunter2",
        "http://hunter2@queue:7878",
        "http://:hunter2@a:7878,http://:hunter2@b:7878",
        "https://queue/?access_token=hunter2",
        "towline://hunter2@queue",
        "amqp://ann:hunter2@[::1:5672//",
        "://:hunter2@",
        "ann:hunter2@db",
        "redis://:hunter2",
        "redis://ann:hunter2/0",
        "postgresql://ann:hunter2/hunter2@db:5432/x",
        "postgresql://ann:hunter2@hunter2@db/x",
        "sqs://AKIA:hunter2@",
        "mongodb+srv://ann:hunter2@db/?authSource=admin",
    ],
)
def test_a_url_of_any_form_shows_no_secret(url: str) -> None:
    assert "hunter2" not in masked(url)
    assert "hun%74er2" not in masked(url)
    assert masked(masked(url)) == masked(url)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann@db/x?sslkey=/etc/key.pem&require_auth=scram-sha-256",
        "sqlite:////srv/towline.db",
        "http://127.0.0.1:7878",
        "unix:///run/towline.sock",
        "memory:",
        "redis+cluster://a:1,b:2/0",
    ],
)
def test_a_url_without_a_secret_stays(url: str) -> None:
    assert masked(url) == url


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("DB_PASSWORD", True),
        ("STRIPE_KEY", True),
        ("apiKey", True),
        ("authToken", True),
        ("SENTRY_DSN", True),
        ("SMTP_PASS", True),
        ("PWD", False),
        ("TOKEN_FILE", False),
        ("KEYBOARD", False),
        ("monkey", False),
        ("PATH", False),
        ("AUTHOR", False),
    ],
)
def test_a_name_says_whether_it_is_a_secrets(name: str, is_one: bool) -> None:
    assert is_secret_name(name) is is_one
    assert masked_value(name, "banana") == ("***" if is_one else "banana")
