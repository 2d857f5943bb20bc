"""Energy and carbon of a training: the sum of the trackers' files, and estimates for time without a tracker."""
