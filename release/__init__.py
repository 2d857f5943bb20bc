"""Making a release: `make release VERSION=x.y.z`. Everything happens beside the checkout until it has come out."""
