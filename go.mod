module github.com/muster-pg/muster

go 1.26.0

require (
	github.com/hashicorp/go-msgpack/v2 v2.1.5 // indirect
	github.com/stretchr/testify v1.12.1 // indirect
	github.com/tidwall/btree v1.8.2 // indirect
	go.uber.org/goleak v1.3.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
)
