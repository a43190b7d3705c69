// SPDX-License-Identifier: Apache-2.0

package dist

// Fail makes known that this rank has failed: the operations of the others in
// this group, and in those that were made from it, end with an error that says
// why. A rank that then returns leaves them no riddle. An error that is itself
// the consequence of another rank's failure is not passed on. [Main] and [Spawn]
// do this with the error that they are returned.
func (g *Group) Fail(err error) {
	if err != nil && !isConsequence(err) {
		g.fail(err)
	}
}
