#!/bin/bash
# Entry point of a SageMaker container that passes SIGTERM to the ranks. AWS's own entry point loses it.
#
# As PID 1 of the container, it runs AWS's start script (`train`) as a child, and ends with the child's exit code. It
# sends signals only to the training processes, which write their PIDs to $SEGTRAIN_RANKS. The launcher sends the lines
# of this file as ContainerArguments, without comments, so that AWS's images run it too. So no line may be longer than
# 255 characters or read $@.

base=${SAGEMAKER_BASE_DIR:-/opt/ml}
export SEGTRAIN_RANKS=${SEGTRAIN_RANKS:-$base/segtrain-ranks}
mkdir -p "$SEGTRAIN_RANKS"
rm -f "$SEGTRAIN_RANKS"/*.pid "$SEGTRAIN_RANKS/stop" "$SEGTRAIN_RANKS/failure" "$base/output/failure"
# Reserved space for the cause of a failure, in case the disk is full. The process that writes the cause deletes this
# file.
head -c 1048576 /dev/zero > "$SEGTRAIN_RANKS/reserve"

# The flag is written before the signal. A process that is starting writes its PID before it looks for the flag, so it
# gets the signal or sees the flag.
tell() {
  told=1
  touch "$SEGTRAIN_RANKS/stop"
  pids=$(cat "$SEGTRAIN_RANKS"/*.pid 2>/dev/null | tr '\n' ' ')
  echo "entrypoint: SIG$1: the state is to be saved by the processes ${pids:-(none yet: they will find the flag)}" >&2
  [ -z "$pids" ] || kill -TERM $pids 2>/dev/null
}
trap 'tell TERM' TERM
trap 'tell INT' INT

# AWS's start script compiles changehostname.c by its name alone, so it must run in /. Images since 2.11 start
# elsewhere.
cd /
start=$(command -v start_with_right_hostname.sh)
if [ -n "$start" ]; then bash -m "$start" train & else train & fi
child=$!

# A trap ends `wait` early, with a code above 128. Then wait again for the child's exit code.
while :; do
  told=
  wait "$child"
  code=$?
  [ "$code" -gt 128 ] && [ -n "$told" ] || break
done

# Old versions of SageMaker's toolkit overwrite the cause of a failure with their own text. The newest one exits with 0
# after some gloo errors, and when the disk is too full for the text. So a job for which a cause was written has failed.
rm -f "$SEGTRAIN_RANKS/reserve"
mkdir -p "$base/output"
if [ -s "$SEGTRAIN_RANKS/failure" ]; then cp -f "$SEGTRAIN_RANKS/failure" "$base/output/failure"; fi
if [ "$code" -eq 0 ] && [ -e "$base/output/failure" ]; then code=1; fi
if [ "$code" -ne 0 ] && [ ! -s "$base/output/failure" ]; then
  text="train ended with code $code on $(hostname): the last lines of its log say why (137: killed, often for memory)"
  echo "$text" > "$base/output/failure"
fi
exit "$code"
