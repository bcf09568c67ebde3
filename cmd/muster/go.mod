module github.com/muster-pg/muster/cmd/muster

go 1.26

require github.com/muster-pg/muster v0.0.0

replace github.com/muster-pg/muster => ../..
