"""Submit, revise, cancel: decisions and sending."""
