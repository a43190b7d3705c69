// SPDX-License-Identifier: Apache-2.0

package table

import (
	"bytes"
	"math"
	"strconv"
)

var nan = float32(math.NaN())

// parseNumber reads a decimal number, to the nearest float64 and from there to
// the nearest float32, and says what is wrong if it is none.
func parseNumber(field []byte) (v float32, problem string) {
	field = bytes.TrimSpace(field)
	wide, ok := plainNumber(field)
	if !ok {
		if bytes.ContainsAny(field, "xX_") || len(field) > 400 {
			return 0, quote(field) + " is no number"
		}
		var err error
		if wide, err = strconv.ParseFloat(string(field), 64); err != nil && !math.IsInf(wide, 0) {
			return 0, quote(field) + " is no number"
		}
	}
	v = float32(wide)
	if math.IsInf(float64(v), 0) || v != v {
		return 0, quote(field) + " is no finite number of 32 bits"
	}
	return v, ""
}

var powersOfTen = [...]float64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15}

// plainNumber reads numbers of at most 15 digits without an exponent, which are
// most of them: digits and power of ten are exact in float64, so their quotient
// is the nearest one. It is false for all others.
func plainNumber(field []byte) (v float64, ok bool) {
	digits := field
	if len(digits) > 0 && (digits[0] == '-' || digits[0] == '+') {
		digits = digits[1:]
	}
	var whole int64
	numDigits, behind, point := 0, 0, false
	for _, c := range digits {
		switch {
		case c >= '0' && c <= '9':
			whole = 10*whole + int64(c-'0')
			if numDigits++; numDigits > 15 {
				return 0, false
			}
			if point {
				behind++
			}
		case c == '.' && !point:
			point = true
		default:
			return 0, false
		}
	}
	if numDigits == 0 {
		return 0, false
	}
	v = float64(whole) / powersOfTen[behind]
	if field[0] == '-' {
		v = -v
	}
	return v, true
}

// exactWhole is the first whole number that float32 cannot tell from the next.
const exactWhole = 1 << 24

// isWhole says whether a number is written as a whole one: 17, +17, or 17.0, as
// pandas writes whole numbers among missing ones.
func isWhole(field []byte) bool {
	digits := bytes.TrimLeft(bytes.TrimSpace(field), "+-")
	if whole, fraction, ok := bytes.Cut(digits, []byte(".")); ok {
		if len(bytes.Trim(fraction, "0")) > 0 {
			return false
		}
		digits = whole
	}
	for _, c := range digits {
		if c < '0' || c > '9' {
			return false
		}
	}
	return len(digits) > 0
}
