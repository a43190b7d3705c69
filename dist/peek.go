// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"

	"github.com/cohort-ml/cohort/dist/store"
)

// peek returns a key's value as it is now, nil if it has none: stores wait in Get.
func peek(ctx context.Context, s store.Store, key string) ([]byte, error) {
	// What has this value gets it again, and what has none gets none; PyTorch's stores
	// would take an empty one for none.
	same := []byte{0}
	value, _, err := s.CompareAndSet(ctx, key, same, same)
	return value, err
}

// isSet reports whether a key has a value.
func isSet(ctx context.Context, s store.Store, key string) (bool, error) {
	value, err := peek(ctx, s, key)
	return value != nil, err
}
