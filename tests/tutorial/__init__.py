"""The tutorial, typed on a bare Debian 12 by a program that knows only its text: `python3 -m tests.tutorial`."""
