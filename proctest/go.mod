module github.com/muster-pg/muster/proctest

go 1.26.0
