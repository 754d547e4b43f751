#!/bin/bash -x
# What ParallelCluster's user data does on a compute node, from the moment at which its file systems are mounted: the custom action of
# OnNodeConfigured, then slurmd. Where the action fails, the instance would be terminated; here the node stays without slurmd.
export PATH=/usr/local/sbin:/usr/local/bin:/sbin:/bin:/usr/sbin:/usr/bin:/opt/aws/bin
unset HOME
/opt/parallelcluster/scripts/custom_action_executor.py -postinstall || { echo 'Bootstrap failed with error: Failed to run bootstrap recipes.'; exit 0; }
systemctl enable --now slurmd
