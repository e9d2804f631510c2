#!/bin/bash
# Custom action of each compute node. It checks that the segtrain that the head node installed runs here. If not, the
# node is terminated. Argument: the shared folder.
set -euo pipefail
workspace=${1:?the shared folder, such as /workspace}
segtrain="$workspace/segtrain/.venv/bin/segtrain"

# Libraries of the native decoder. If they cannot be installed, reading images takes more CPU, but the node still works.
export DEBIAN_FRONTEND=noninteractive
apt-get install -y -qq --no-install-recommends libjpeg-turbo8 libdeflate0 >/dev/null 2>&1 ||
  echo 'segtrain compute.sh: without libjpeg-turbo8 and libdeflate0: reading images takes more CPU on this node'

if ! said=$("$segtrain" --version 2>&1); then
  echo "segtrain compute.sh: $segtrain does not run on $(hostname): $said" >&2
  echo "is $workspace mounted, and did head.sh end well? See /var/log/cfn-init.log of the head node" >&2
  exit 1
fi
echo "segtrain compute.sh: $said on $(hostname)"
