#!/bin/bash
# How does a stop reach the ranks? AWS's entry point loses SIGTERM; this one, as PID 1 of the container, does not.
#
# It runs AWS's own start (`train`) as a child, signals exactly the processes that train (they leave their PIDs in
# $SEGTRAIN_RANKS), and ends with the child's exit code. The launcher sends these lines along as ContainerArguments,
# so they also work on stock images: no line is longer than 255 characters, needs its neighbours' comments, or reads $@.

base=${SAGEMAKER_BASE_DIR:-/opt/ml}
export SEGTRAIN_RANKS=${SEGTRAIN_RANKS:-$base/segtrain-ranks}
mkdir -p "$SEGTRAIN_RANKS"
rm -f "$SEGTRAIN_RANKS"/*.pid "$SEGTRAIN_RANKS/stop" "$SEGTRAIN_RANKS/failure"

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

# Some toolkits overwrite the text with their own, or end with 0 although a rank has failed.
if [ -s "$SEGTRAIN_RANKS/failure" ]; then
  mkdir -p "$base/output"
  cp -f "$SEGTRAIN_RANKS/failure" "$base/output/failure"
  [ "$code" -ne 0 ] || code=1
fi
if [ "$code" -ne 0 ] && [ ! -s "$base/output/failure" ]; then
  mkdir -p "$base/output"
  echo "train ended with code $code on $(hostname): its last lines in the log say why (137: killed, often for memory)" > "$base/output/failure"
fi
exit "$code"
