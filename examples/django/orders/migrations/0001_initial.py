"""The table of orders."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Make the table."""

    initial = True
    dependencies = ()
    operations = (
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("item", models.CharField(max_length=100)),
                ("receipts", models.IntegerField(default=0)),
            ],
        ),
    )
