// An OpenID provider over TLS, with the users and the sign-in page of github.com/zitadel/oidc's example.
package main

import (
	"log"
	"log/slog"
	"net/http"
	"os"

	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		println("v0")
		return
	}
	address, certificate, key, redirects := os.Args[1], os.Args[2], os.Args[3], os.Args[4:]
	issuer := "https://" + address
	storage.RegisterClients(storage.WebClient("seedquota", "secret", redirects...))
	store := storage.NewStorage(storage.NewUserStore(issuer))
	router := exampleop.SetupServer(issuer, store, slog.New(slog.NewTextHandler(os.Stderr, nil)), false)
	log.Fatal(http.ListenAndServeTLS(address, certificate, key, router))
}
