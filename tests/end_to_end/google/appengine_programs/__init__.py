"""Programs written for App Engine, as their authors would: nothing in them knows of Towline."""
