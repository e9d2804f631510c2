#!/bin/bash
# How does a stop reach the ranks? AWS's entry point loses SIGTERM; this one, as PID 1 of the container, does not.
#
# It runs AWS's own start (`train`) as a child, signals exactly the processes that train (they leave their PIDs in
# $SEGTRAIN_RANKS), and ends with the child's exit code. The launcher sends these lines along as ContainerArguments,
# so they also work on stock images: no line is longer than 255 characters, needs its neighbors' comments, or reads $@.

base=${SAGEMAKER_BASE_DIR:-/opt/ml}
export SEGTRAIN_RANKS=${SEGTRAIN_RANKS:-$base/segtrain-ranks}
mkdir -p "$SEGTRAIN_RANKS"
rm -f "$SEGTRAIN_RANKS"/*.pid "$SEGTRAIN_RANKS/stop" "$SEGTRAIN_RANKS/failure" "$base/output/failure"
# Room for the cause on a disk that has filled up: whoever writes it deletes this first.
head -c 1048576 /dev/zero > "$SEGTRAIN_RANKS/reserve"

# The flag comes first: a process that starts now leaves its PID, then looks for the flag. It gets one or the other.
tell() {
  told=1
  touch "$SEGTRAIN_RANKS/stop"
  pids=$(cat "$SEGTRAIN_RANKS"/*.pid 2>/dev/null | tr '\n' ' ')
  echo "entrypoint: SIG$1: the state is to be saved by the processes ${pids:-(none yet: they will find the flag)}" >&2
  [ -z "$pids" ] || kill -TERM $pids 2>/dev/null
}
trap 'tell TERM' TERM
trap 'tell INT' INT

# AWS's start script compiles /changehostname.c by its bare name, and images since 2.11 begin in another folder.
cd /
start=$(command -v start_with_right_hostname.sh)
if [ -n "$start" ]; then bash -m "$start" train & else train & fi
child=$!

# A trap ends `wait` early, with a code above 128: wait again for the child's own.
while :; do
  told=
  wait "$child"
  code=$?
  [ "$code" -gt 128 ] && [ -n "$told" ] || break
done

# Old toolkits overwrite the text with their own. The newest one ends with 0 when it cannot write it on a full disk, and
# after some errors of gloo: a job that has left a cause is not done.
rm -f "$SEGTRAIN_RANKS/reserve"
mkdir -p "$base/output"
if [ -s "$SEGTRAIN_RANKS/failure" ]; then cp -f "$SEGTRAIN_RANKS/failure" "$base/output/failure"; fi
if [ "$code" -eq 0 ] && [ -e "$base/output/failure" ]; then code=1; fi
if [ "$code" -ne 0 ] && [ ! -s "$base/output/failure" ]; then
  text="train ended with code $code on $(hostname): the last lines of its log say why (137: killed, often for memory)"
  echo "$text" > "$base/output/failure"
fi
exit "$code"
