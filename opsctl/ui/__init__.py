"""Screens for people: status, the live screen, the HTML page and the doctor."""
