"""Energy and carbon of a training: trackers' files added up once, weighed up to what no tracker saw, and said how."""
