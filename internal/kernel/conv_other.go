// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package kernel

func (g *gatherer) gatherFast(b *gatherBlock, dst *float32, tapStep, channelStep int, src *float32, count int) bool {
	return false
}
