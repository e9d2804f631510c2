# Start program of a Vertex AI container: it fetches the code bundle, installs its packages, and
# starts the training.
#
# The launcher sends this text as the container's command, so it also works in Google's images. It
# needs only Python and pip. A container that is restarted runs it again.


import json
import os
import subprocess
import sys
import tarfile
import time
import urllib.parse
import urllib.request

bundle = os.environ["SEGTRAIN_BUNDLE"]
code = os.environ.get("SEGTRAIN_CODE", "/tmp/segtrain-code")
bucket, _, key = bundle[len("gs://") :].partition("/")
emulator, metadata = os.environ.get("STORAGE_EMULATOR_HOST"), os.environ.get("GCE_METADATA_HOST")


def answer_to(place, headers):
    with urllib.request.urlopen(
        urllib.request.Request(place, headers=headers), timeout=60
    ) as answer:
        return answer.read()


def download(target):
    # /gcs is not mounted: use the machine's service account. The metadata server returns its token.
    headers = {}
    if metadata or not emulator:
        host = metadata or "metadata.google.internal"
        place = "http://" + host + "/computeMetadata/v1/instance/service-accounts/default/token"
        token = json.loads(answer_to(place, {"Metadata-Flavor": "Google"}))["access_token"]
        headers["Authorization"] = "Bearer " + token
    storage = emulator or "https://storage.googleapis.com"
    content = answer_to(storage + "/" + bucket + "/" + urllib.parse.quote(key), headers)
    with open(target, "wb") as stream:
        stream.write(content)


os.makedirs(code, exist_ok=True)
for pause in (1, 2, 4, 8, 16, None):
    try:
        source = os.path.join("/gcs", bucket, key)
        if not os.path.isfile(source):
            source = code + ".tar.gz"
            download(source)
        with tarfile.open(source) as tar:
            tar.extractall(code)
        break
    # The errors are of many kinds: a lost connection raises errors of http.client, and a truncated
    # archive those of zlib.
    except Exception as error:
        if pause is None:
            sys.exit("error: cannot fetch the code from " + bundle + ": " + str(error))
        print("cannot fetch the code from", bundle, "yet:", error, flush=True)
        time.sleep(pause)
os.chdir(code)
if os.environ.get("SEGTRAIN_PIP") != "0":
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "-q",
        "-r",
        "requirements.txt",
    ]
    ended = subprocess.call(install)
    if ended:
        sys.exit(
            "error: pip ended with "
            + str(ended)
            + ": it could not install requirements.txt (see above)"
        )
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [code, os.environ.get("PYTHONPATH")]))
os.execv(sys.executable, [sys.executable, "-m", "segtrain.platforms.vertex", *sys.argv[1:]])
