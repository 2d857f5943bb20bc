"""Copies to other places: object stores, backups and hubs."""
