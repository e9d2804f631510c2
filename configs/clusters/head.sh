#!/bin/bash
# Custom action of the head node. It installs segtrain on the shared file system, once for all of its clusters, and a
# nightly archive.
#   aws s3 cp configs/clusters/head.sh s3://my-bucket/bootstrap/
#   git archive --format=tar.gz --output segtrain.tar.gz HEAD && aws s3 cp segtrain.tar.gz s3://my-bucket/bootstrap/
# Arguments: the shared folder, and the archive of segtrain. Each version of the archive gets its own folder.
set -euo pipefail
workspace=${1:?the shared folder, such as /workspace}
archive=${2:?the archive of segtrain, such as s3://my-bucket/bootstrap/segtrain.tar.gz}
say() { echo "segtrain head.sh: $*"; }

mkdir -p "$workspace/runs" "$workspace/versions"
chmod 1777 "$workspace/runs"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
aws s3 cp --only-show-errors "$archive" "$scratch/segtrain.tar.gz"
version=$(sha256sum "$scratch/segtrain.tar.gz" | cut -c1-12)
home="$workspace/versions/$version"

export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends python3-venv python3-dev g++ libjpeg-dev libdeflate-dev cron >/dev/null

# Another cluster may be installing on the same file system. Then wait until it is done.
exec 9>"$workspace/versions/lock"
flock 9
if [ ! -e "$home/.installed" ]; then
  say "installing $version into $home"
  rm -rf "$home"
  mkdir -p "$home"
  tar -xzf "$scratch/segtrain.tar.gz" -C "$home"
  python3 -m venv "$home/.venv"
  "$home/.venv/bin/pip" install --quiet --constraint "$home/requirements.lock" --editable "$home[buckets]"
  "$home/.venv/bin/segtrain" --version
  touch "$home/.installed"
fi
ln -sfn "versions/$version" "$workspace/segtrain"
flock -u 9

# Every night, archive the files that S3 does not have yet. If there are several clusters, the first head node does it.
cat > "$workspace/versions/archive.sh" <<ARCHIVE
#!/bin/sh
find $workspace/runs -type f -print0 | xargs -0 -r -n 1 lfs hsm_archive
find $workspace/runs -type f -print0 | xargs -0 -r lfs hsm_state > $workspace/versions/archive.txt
ARCHIVE
chmod +x "$workspace/versions/archive.sh"
cat > "${CRON_D:-/etc/cron.d}/segtrain-archive" <<CRON
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
17 2 * * * root flock -n $workspace/versions/archive.lock $workspace/versions/archive.sh >> /var/log/segtrain-archive.log 2>&1
CRON
say "ready: $workspace/segtrain/.venv/bin/segtrain"
