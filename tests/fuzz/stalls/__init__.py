"""Hostile requests to every endpoint, door and page, by every role: how long does the server's loop stand still?"""
