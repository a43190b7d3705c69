// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package lobby

// descriptors returns how many descriptors this process may have.
func descriptors() int { return usualDescriptors }
