// SPDX-License-Identifier: Apache-2.0

package vision

import (
	"fmt"
)

// maxPixels is the largest image that another is scaled to: 128 Mi pixels.
const maxPixels = 1 << 27

// Image is Height rows of Width pixels, each of Channels bytes: 1 is grey, 3
// is red, green, blue. Pix has exactly Height·Width·Channels bytes.
type Image struct {
	Width, Height, Channels int
	Pix                     []byte
}

// newImage returns a black image.
func newImage(width, height, channels int) Image {
	return Image{width, height, channels, make([]byte, width*height*channels)}
}

// row returns the bytes of a row.
func (m Image) row(y int) []byte {
	n := m.Width * m.Channels
	return m.Pix[y*n : (y+1)*n : (y+1)*n]
}

// check says what makes an image none.
func (m Image) check() error {
	switch {
	case m.Width < 1 || m.Height < 1 || m.Channels != 1 && m.Channels != 3:
		return fmt.Errorf("vision: an image of %d·%d pixels with %d channels: want at least 1·1 with 1 or 3", m.Width, m.Height, m.Channels)
	case len(m.Pix) != m.Width*m.Height*m.Channels:
		return fmt.Errorf("vision: an image of %d·%d·%d has %d bytes", m.Height, m.Width, m.Channels, len(m.Pix))
	}
	return nil
}

// Sample is an image and the number of its class.
type Sample struct {
	Image Image
	Label int
}

// Error says what is wrong with a file of images, and where.
type Error struct {
	Path   string
	Detail string
	Err    error // of the system or a decoder, may be nil
}

func (e *Error) Error() string {
	s := "vision: " + e.Path
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// broken is an [Error] in a few words.
func broken(path, format string, args ...any) *Error {
	return &Error{Path: path, Detail: fmt.Sprintf(format, args...)}
}
