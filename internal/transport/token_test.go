// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/internal/envvar"
)

func TestTokenText(t *testing.T) {
	token := NewToken()
	again, err := ParseToken(" " + token.Text() + "\n")
	if err != nil || !again.Equal(token) {
		t.Errorf("%v: the text form does not give the token back", err)
	}
	if token.Equal(NewToken()) {
		t.Error("two tokens are equal")
	}
	for _, bad := range []string{"12", strings.Repeat("g", 64), strings.Repeat("0", 64), strings.Repeat("a", 65)} {
		if _, err := ParseToken(bad); err == nil || strings.Contains(err.Error(), bad) && len(bad) > 2 {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, err := ParseToken(" "); !errors.Is(err, ErrNoToken) {
		t.Error(err)
	}
}

func TestTokenIsNotPrinted(t *testing.T) {
	token := NewToken()
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d", "%q"} {
		fmt.Fprintf(&out, verb+verb, token, struct{ T Token }{token})
	}
	fmt.Fprintln(&out, token, []Token{token}, fmt.Errorf("x %v", token))
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "token", token)
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "token", token)
	text := strings.ToLower(out.String())
	if strings.Contains(text, token.Text()) || strings.Contains(text, fmt.Sprint(token.key[0], " ", token.key[1])) ||
		strings.Contains(text, token.Text()[:16]) {
		t.Errorf("the token was printed:\n%s", text)
	}
}

func TestTokenFromEnv(t *testing.T) {
	t.Setenv(string(envvar.Token), "")
	t.Setenv(string(envvar.TokenFile), "")
	_, err := TokenFromEnv()
	if !errors.Is(err, ErrNoToken) || !strings.Contains(err.Error(), "openssl rand -hex 32") {
		t.Errorf("%v: want the command that makes a token", err)
	}

	token := NewToken()
	t.Setenv(string(envvar.Token), token.Text())
	if got, err := TokenFromEnv(); err != nil || !got.Equal(token) {
		t.Error(err)
	}
	t.Setenv(string(envvar.Token), "secret but short")
	if _, err := TokenFromEnv(); err == nil || !strings.Contains(err.Error(), "COHORT_TOKEN") || strings.Contains(err.Error(), "secret but") {
		t.Errorf("%v: want the variable's name and not its value", err)
	}

	t.Setenv(string(envvar.Token), "")
	path := filepath.Join(t.TempDir(), "token")
	t.Setenv(string(envvar.TokenFile), path)
	if _, err := TokenFromEnv(); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "COHORT_TOKEN_FILE") {
		t.Errorf("no file: %v", err)
	}
	os.WriteFile(path, []byte(token.Text()+"\n"), 0o600)
	if got, err := TokenFromEnv(); err != nil || !got.Equal(token) {
		t.Error(err)
	}
	os.Chmod(path, 0o640)
	if _, err := TokenFromEnv(); err == nil || !strings.Contains(err.Error(), "chmod 600 "+path) {
		t.Errorf("readable by the group: %v, want the command that mends it", err)
	}
	os.Chmod(path, 0o600)
	os.WriteFile(path, nil, 0o600)
	if _, err := TokenFromEnv(); err == nil || errors.Is(err, ErrNoToken) || !strings.Contains(err.Error(), path) {
		t.Errorf("empty file: %v", err)
	}
	t.Setenv(string(envvar.TokenFile), filepath.Dir(path))
	if _, err := TokenFromEnv(); err == nil {
		t.Error("a directory was read as a token")
	}
}

// FuzzParseToken: what is accepted is the token that its text says, and what is
// not is never quoted.
func FuzzParseToken(f *testing.F) {
	f.Add(strings.Repeat("5c", 32))
	f.Add(" " + strings.Repeat("5C", 32) + "\n")
	f.Add(strings.Repeat("0", 64))
	f.Add("hush-hush")
	f.Fuzz(func(t *testing.T, text string) {
		token, err := ParseToken(text)
		if err == nil && token.Text() != strings.ToLower(strings.TrimSpace(text)) {
			t.Errorf("%q is read as another token", text)
		}
		if err != nil && (!token.IsZero() || len(text) > 20 && strings.Contains(err.Error(), text[:20])) {
			t.Errorf("%q: %v", text, err)
		}
	})
}
