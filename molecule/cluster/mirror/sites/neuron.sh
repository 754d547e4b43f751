# shellcheck shell=bash disable=SC2034,SC2154  # top, work and the like are from lib.sh, which reads description
# apt.repos.neuron.amazonaws.com and yum.repos.neuron.amazonaws.com: AWS Neuron's driver, without anything in it, and
# its tools, which are stand-ins. The deb repository's list is signed, and of the rpm repository the packages.
neuron_apt=$top/apt.repos.neuron.amazonaws.com neuron_yum=$top/yum.repos.neuron.amazonaws.com
neuron_tools=2.32.28.0 neuron_driver=2.30.2.0

neuron_package() {  # name version
  deb "$1" "$2" "" "$neuron_apt/pool/main/a/$1"
  rpm_package "$1" "$2-1" "" "$work/neuron_rpm"
}

description='a stand-in'
stage_nothing aws-neuronx-dkms && neuron_package aws-neuronx-dkms "$neuron_driver"
stage && mkdir -p "$work/stage/opt/aws/neuron/bin"
for neuron_name in neuron-ls neuron-monitor neuron-monitor-prometheus.py nccom-test; do
  neuron_source=${neuron_name%.py}
  install -m 0755 "/standins/neuron/${neuron_source//-/_}.py" "$work/stage/opt/aws/neuron/bin/$neuron_name"
done
neuron_package aws-neuronx-tools "$neuron_tools"
apt_suite "$neuron_apt" noble pool/main Neuron Neuron main
mkdir -p "$neuron_yum" && mv "$work/neuron_rpm/$(uname -m)"/*.rpm "$neuron_yum/"
rpm_sign "$neuron_yum"
rpm_repository "$neuron_yum"
for neuron_site in "$neuron_apt" "$neuron_yum"; do cp "$work/key.asc" "$neuron_site/GPG-PUB-KEY-AMAZON-AWS-NEURON.PUB"; done
pin neuron "$(jq -nc --arg version "$neuron_tools" --arg driver "$neuron_driver" '{$version, $driver}')"
