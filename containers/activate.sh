# shellcheck shell=bash
# An environment script for `[run] environment`: on the nodes, python is the image's.
# OPSCTL_IMAGE (under [env] of the run file, or here) names the image; OPSCTL_BINDS further folders, as apptainer takes them.
export OPSCTL_IMAGE=${OPSCTL_IMAGE:-$(dirname "${BASH_SOURCE[0]}")/../opsctl.sif}
PATH=$(cd "$(dirname "${BASH_SOURCE[0]}")/bin" && pwd):$PATH
export PATH
