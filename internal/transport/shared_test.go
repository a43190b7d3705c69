// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"time"
)

// sharedArg makes the test binary a peer that says a word and then nothing.
const sharedArg = "transport-shared"

func runShared(addr, token string) error {
	key, err := ParseToken(token)
	if err != nil {
		return err
	}
	c, err := DialShared(context.Background(), addr, "test", key)
	if err != nil {
		return err
	}
	if err := c.WriteFrame(1, []byte("here")); err != nil {
		return err
	}
	time.Sleep(patience)
	return errors.New("nobody has killed this process")
}
