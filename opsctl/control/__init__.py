"""Submit, revise, cancel, kill switch."""
