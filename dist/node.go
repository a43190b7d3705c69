// SPDX-License-Identifier: Apache-2.0

package dist

// NodeID returns what names the node that this process runs on, as [Group.Node]
// does: COHORT_NODE_ID, or what only processes have in common that the same running
// kernel serves in the same network namespace. It is empty where that is not known.
func NodeID() string { return nodeID("") }
