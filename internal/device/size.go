// SPDX-License-Identifier: Apache-2.0

package device

import "fmt"

// Size writes a number of bytes of memory with a unit of powers of 1,024.
func Size(n uint64) string {
	for i, unit := range []string{"TiB", "GiB", "MiB", "KiB"} {
		if size := float64(uint64(1) << (40 - 10*i)); float64(n) >= size {
			return fmt.Sprintf("%.4g %s", float64(n)/size, unit)
		}
	}
	return fmt.Sprintf("%d B", n)
}
