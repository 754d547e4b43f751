# An AMI with a bundle of pcluster.postboot inside, from ParallelCluster's own AMI. README.md says how to build one.

packer {
  required_plugins {
    amazon = {
      source  = "github.com/hashicorp/amazon"
      version = ">= 1.2.8"
    }
  }
}

variable "region" {
  type        = string
  description = "The region in which the AMI is built and used."
}

variable "parallelcluster" {
  type        = string
  description = "The version of ParallelCluster that makes the cluster, such as 3.16.1."
}

variable "system" {
  type        = string
  description = "The system in the names of ParallelCluster's AMIs: ubuntu-2404-lts, ubuntu-2204-lts, amzn2023 or rhel9."
  default     = "ubuntu-2404-lts"
}

variable "architecture" {
  type        = string
  description = "x86_64 or arm64."
  default     = "x86_64"
}

variable "user" {
  type        = string
  description = "The AMI's user: ubuntu, or ec2-user on Amazon Linux and RHEL."
  default     = "ubuntu"
}

variable "bundle" {
  type        = string
  description = "The bundle's URL, as publish has printed it after --bundle."
}

variable "sha256" {
  type        = string
  description = "The bundle's sha256, as publish has printed it after --sha256."
}

variable "instance_profile" {
  type        = string
  description = "An instance profile that may read the bundle; with session_manager also AmazonSSMManagedInstanceCore."
}

variable "instance_type" {
  type        = string
  description = "The machine on which the AMI is built. It needs no GPU."
  default     = "c6i.2xlarge"
}

variable "subnet" {
  type        = string
  description = "The subnet of that machine. Empty takes one of the default VPC."
  default     = ""
}

variable "ssh_interface" {
  type        = string
  description = "How Packer reaches the machine: session_manager (SSM), public_ip or private_ip."
  default     = "session_manager"
}

source "amazon-ebs" "parallelcluster" {
  region               = var.region
  ami_name             = "pcluster-postboot-${var.parallelcluster}-${var.system}-${substr(var.sha256, 0, 12)}"
  instance_type        = var.instance_type
  subnet_id            = var.subnet
  iam_instance_profile = var.instance_profile
  imds_support         = "v2.0"

  # No tag parallelcluster:version: with this tag ParallelCluster wants those of its own build-image too.
  tags = {
    Name                       = "pcluster-postboot"
    "pcluster-postboot:bundle" = var.bundle
  }

  source_ami_filter {
    filters = {
      name                = "aws-parallelcluster-${var.parallelcluster}-${var.system}-hvm-${var.architecture}-*"
      virtualization-type = "hvm"
    }
    owners             = ["amazon"]
    most_recent        = true
    include_deprecated = true
  }

  communicator              = "ssh"
  ssh_username              = var.user
  ssh_interface             = var.ssh_interface
  ssh_clear_authorized_keys = true

  metadata_options {
    http_endpoint = "enabled"
    http_tokens   = "required"
  }
}

build {
  sources = ["source.amazon-ebs.parallelcluster"]

  provisioner "shell" {
    script           = "${path.root}/../../roles/bake/files/bake.sh"
    environment_vars = ["BUNDLE=${var.bundle}", "SHA256=${var.sha256}"]
    execute_command  = "sudo env {{ .Vars }} bash {{ .Path }}"
  }

  # The AMI is refused where bake would still change something. ParallelCluster's script comes last, because it takes away
  # what belongs to one machine alone: its host keys, its logs, and what cloud-init has done.
  provisioner "shell" {
    inline = [
      "set -e",
      "sudo /opt/pcluster-postboot/current/bootstrap.sh --installed --bake --check",
      "sudo /usr/local/sbin/ami_cleanup.sh",
    ]
    skip_clean = true # the clean-up takes away Packer's own script
  }
}
