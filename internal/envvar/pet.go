// SPDX-License-Identifier: Apache-2.0

package envvar

import "strings"

// PET is the variable from which a flag of cohort run takes its default, as
// torchrun's flags do: PET_NPROC_PER_NODE for nproc-per-node.
func PET(flag string) Var {
	return Var("PET_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_")))
}
