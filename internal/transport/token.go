// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"crypto/hmac"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"syscall"

	"github.com/cohort-ml/cohort/internal/envvar"
)

// Token is the secret that the members of a job share. The zero Token is no
// token: Listen and Dial refuse it. Printing a Token with any verb, also as a
// field of something else, does not show it, nor does the trace of a panic;
// Text does.
type Token struct {
	// A pointer, for what is in arguments and fields gets into traces and
	// printed structures.
	*secret
}

type secret struct {
	key  [32]byte
	said nonces // first words of members, so that none is taken twice
}

// NewToken returns a random token.
func NewToken() Token {
	t := Token{new(secret)}
	rand.Read(t.key[:])
	return t
}

// ParseToken reads the text form: 64 hexadecimal digits.
func ParseToken(text string) (Token, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return Token{}, ErrNoToken
	}
	t := Token{new(secret)}
	if len(text) != 2*len(t.key) {
		return Token{}, fmt.Errorf("a job token is %d hexadecimal digits (as `openssl rand -hex 32` prints), not %d characters", 2*len(t.key), len(text))
	}
	if _, err := hex.Decode(t.key[:], []byte(text)); err != nil {
		// The decoder's error quotes the text; a secret must not.
		return Token{}, fmt.Errorf("a job token is %d hexadecimal digits (as `openssl rand -hex 32` prints): it has other characters", 2*len(t.key))
	}
	if t.key == [32]byte{} {
		return Token{}, errors.New("the job token is all zeros: make one with `openssl rand -hex 32`")
	}
	return t, nil
}

// TokenFromEnv returns the token in COHORT_TOKEN or, when that is not set, in
// the file that COHORT_TOKEN_FILE names. With neither the error is ErrNoToken.
func TokenFromEnv() (Token, error) {
	if text, ok := envvar.Token.Lookup(); ok {
		t, err := ParseToken(text)
		if err != nil {
			return Token{}, fmt.Errorf("%s: %w", envvar.Token, err)
		}
		return t, nil
	}
	if path, ok := envvar.TokenFile.Lookup(); ok {
		t, err := ReadTokenFile(path)
		if err != nil {
			return Token{}, fmt.Errorf("%s: %w", envvar.TokenFile, err)
		}
		return t, nil
	}
	return Token{}, ErrNoToken
}

// ReadTokenFile reads a token from a file that others than its owner cannot read.
func ReadTokenFile(path string) (Token, error) {
	f, err := os.Open(path)
	if err != nil {
		return Token{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Token{}, err
	}
	if !info.Mode().IsRegular() {
		return Token{}, fmt.Errorf("%s: a token file is a regular file, this is %s", path, info.Mode().Type())
	}
	if owner, ok := fileOwner(info); ok && owner != 0 && owner != os.Geteuid() {
		return Token{}, fmt.Errorf("%s: the file belongs to another user (id %d), who knows its token: make one of your own with `cohort token --file FILE`", path, owner)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return Token{}, fmt.Errorf("%s: others than its owner can use this file (mode %04o), so its token is no secret: run `chmod 600 %s`", path, info.Mode().Perm(), path)
	}
	text, err := io.ReadAll(io.LimitReader(f, 4096))
	if err != nil {
		return Token{}, fmt.Errorf("%s: %w", path, err)
	}
	t, err := ParseToken(string(text))
	if errors.Is(err, ErrNoToken) {
		return Token{}, fmt.Errorf("%s: the file is empty: fill it with `openssl rand -hex 32`, or make a new one with `cohort token --file FILE`", path)
	}
	if err != nil {
		return Token{}, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// fileOwner returns the id of a file's owner, where the system has such.
func fileOwner(info os.FileInfo) (id int, ok bool) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(stat.Uid), true
}

// Text returns the secret as 64 hexadecimal digits, to be handed to a member.
func (t Token) Text() string { return hex.EncodeToString(t.key[:]) }

// IsZero says whether t is no token.
func (t Token) IsZero() bool { return t.secret == nil }

// Equal says whether two tokens are the same secret.
func (t Token) Equal(u Token) bool {
	return t.IsZero() && u.IsZero() || !t.IsZero() && !u.IsZero() && hmac.Equal(t.key[:], u.key[:])
}

// Format keeps the secret out of whatever is printed.
func (t Token) Format(s fmt.State, _ rune) { io.WriteString(s, "Token(hidden)") }

// LogValue keeps the secret out of logs.
func (t Token) LogValue() slog.Value { return slog.StringValue("Token(hidden)") }
