"""Django's tasks on Towline: a site with the tasks of Django's own documentation."""
