"""Where documents come from: files and folders of many kinds, cut into pieces that are read apart from each other."""
