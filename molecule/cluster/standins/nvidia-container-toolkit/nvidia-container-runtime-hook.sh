#!/bin/bash
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# A stand-in for NVIDIA's nvidia-container-runtime-hook, for the sandbox: what `docker run --gpus` calls before a
# container's program starts.
set -eu
[ "${1:-}" = prestart ] || exit 0
state=$(cat)
field() { grep -o "\"$1\":[^,}]*" <<< "$state" | head -n 1 | cut -d: -f2- | tr -d '" '; }
bundle=$(field bundle) pid=$(field pid)
read -r root wanted < <(python3 -c '
import json, os, sys
bundle = sys.argv[1]
config = json.load(open(os.path.join(bundle, "config.json")))
words = [word.partition("=") for word in config["process"].get("env") or []]
wanted = [value for name, _, value in words if name == "NVIDIA_VISIBLE_DEVICES"]
print(os.path.join(bundle, config["root"]["path"]), (wanted or ["void"])[-1] or "void")' "$bundle")
[ "$wanted" = void ] && exit 0
toml=/etc/nvidia-container-runtime/config.toml
[ -e "$toml" ] || toml=/dev/null
mode=$(sed -n '/^\[nvidia-container-runtime\]/,/^\[nvidia-container-runtime\./s/^mode = "\(.*\)"/\1/p' "$toml")
case ${mode:-auto} in
  auto | legacy) ;;
  *)
    echo "invoking the NVIDIA Container Runtime Hook directly (e.g. specifying the docker --gpus flag) is not supported. Please use the NVIDIA" \
      "Container Runtime (e.g. specify the --runtime=nvidia flag) instead" >&2
    exit 2
    ;;
esac
[ "$wanted" = none ] || set -- --device="$wanted"
exec nvidia-container-cli --load-kmods configure --pid="$pid" "$@" "$root"
