package link_test

const hasUnix = true
