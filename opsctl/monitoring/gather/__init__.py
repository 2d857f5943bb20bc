"""Where each part of a snapshot comes from: one module for each kind of source."""
