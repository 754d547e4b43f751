#!/usr/bin/env bash
# Does what README tells a newcomer to do first, in an environment of its own: installs the packages that README names
# and the collection of build/ (`make build`), then asks for an inventory, without an account of AWS. amazon.aws comes
# from Galaxy.
#
#   first_run.sh [--offline FILE...]      FILE stands for what Galaxy would give, such as amazon-aws-10.1.2.tar.gz of
#                                        `ansible-galaxy collection download amazon.aws`
set -euo pipefail
cd "$(dirname "$0")/.."
readme=$(sed -n 's/^ *\$ pip install //p' README.md)
[ "$readme" ] || { echo "README.md has no line with pip install" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
export HOME=$work PATH=$work/venv/bin:/usr/bin:/bin AWS_EC2_METADATA_DISABLED=true
unset ANSIBLE_CONFIG ANSIBLE_COLLECTIONS_PATH AWS_ENDPOINT_URL AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_PROFILE
packages=() # README quotes them for a shell
eval "packages=($readme)"
[ "${packages[*]:1}" = boto3 ] || { echo "README installs ${packages[*]}; needed: ansible-core and boto3" >&2; exit 1; }
pip install --quiet --disable-pip-version-check "${packages[0]}"
ansible-galaxy collection install "$@" build/pcluster-postboot-*.tar.gz
cp inventory/ansible.cfg "$work/"
cd "$work"
cat > my.pcluster.yml << END
plugin: pcluster.postboot.pcluster
regions: [us-east-2]
clusters: [my-cluster]
connection: ssm
bucket: my-ansible-bucket
END
expect() {  # words of the one line that the inventory ends with
  if ansible-inventory -i my.pcluster.yml --graph > said 2>&1 || ! grep -qF "$1" said; then
    cat said >&2
    echo "the inventory did not say: $1" >&2
    exit 1
  fi
  grep -m 1 -F "$1" said
}
expect " -m pip install boto3"
pip install --quiet --disable-pip-version-check "${packages[@]}"
expect "needs AWS credentials"
for playbook in site verify publish fleet status; do
  ansible-playbook --syntax-check -i localhost, "pcluster.postboot.$playbook"
done
ansible-doc --type connection amazon.aws.aws_ssm > /dev/null
echo "ansible-core, boto3 and the collection are enough for README's first run"
