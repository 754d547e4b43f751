#!/bin/bash
# nvidia-ctk 1.19.1 ends with 0 while two CDI files hide every device.
#
# If two files in one directory name the same device, container-device-interface drops the device from both. So a second
# file in /etc/cdi, such as an administrator's copy of the generated one, leaves containers without GPUs.
# "nvidia-ctk cdi list" then lists nothing, writes a warning to its standard error, and ends with 0. In two directories,
# the same files are no conflict: the file of the later directory counts.
# Needs Go and a C compiler.
set -e
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export GOPATH="$folder/go" GOFLAGS=-modcacherw
GOBIN="$folder" go install github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk@v1.19.1 2> "$folder/log" ||
  { cat "$folder/log"; exit 1; }
mkdir "$folder/both" "$folder/first" "$folder/second"
for place in both/generated both/copy first/generated second/copy; do
  cat > "$folder/$place.yaml" << 'YAML'
cdiVersion: 0.6.0
kind: nvidia.com/gpu
devices:
  - name: "0"
    containerEdits:
      env: [EXAMPLE=1]
YAML
done
list() { "$folder/nvidia-ctk" cdi list "$@" 2> "$folder/errors"; }

echo "nvidia-ctk 1.19.1, two directories: $(list --spec-dir "$folder/first" --spec-dir "$folder/second")"
test "$(list --spec-dir "$folder/first" --spec-dir "$folder/second")" = nvidia.com/gpu=0
found=$(list --spec-dir "$folder/both")
echo "one directory: '$found', exit code $?"
grep -o 'conflicting device .*' "$folder/errors" | sed "s#$folder/##g" | head -n 1
test -z "$found"
grep -q 'level=warning .*conflicting device' "$folder/errors"
