// A program as an App Engine shop has it: the stock SDK, and nothing that knows where its API really is.
//
// story NAME runs one story on the pull queue of the same name, checks every answer, and prints "ok" at the end.
package main

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"time"

	"golang.org/x/net/context"
	"google.golang.org/appengine"
	"google.golang.org/appengine/taskqueue"
)

func main() {
	stories := map[string]func(context.Context, string){
		"tags": tags, "leases": leases, "names": names, "limits": limits, "refusals": refusals, "ticket": ticket,
	}
	name := os.Args[1]
	stories[name](appengine.BackgroundContext(), name)
	fmt.Println("ok")
}

// tags adds one by one and many at once, and leases by tag, by the oldest tag, and without regard to tags.
func tags(c context.Context, queue string) {
	one := add(c, queue, &taskqueue.Task{Method: "PULL", Payload: []byte("first\x00\xff"), Tag: "red"})
	is("a chosen name", one.Name != "", true)
	many, err := taskqueue.AddMulti(c, []*taskqueue.Task{
		{Method: "PULL", Payload: []byte("second"), Tag: "blue", Name: "b1"},
		{Method: "PULL", Payload: []byte{}, Tag: "blue"},
		{Method: "PULL", Payload: []byte("fourth")},
		{Method: "PULL", Payload: []byte("fifth"), Tag: "red"},
		{Method: "PULL", Payload: []byte("later"), Tag: "red", Delay: time.Hour},
	}, queue)
	must(err)
	is("a given name", many[0].Name, "b1")
	is("a chosen name", many[1].Name != "" && many[1].Name != many[2].Name, true)

	blue := byTag(c, queue, 10, "blue")
	is("payloads of blue", payloads(blue), []string{"second", ""})
	is("a task", []interface{}{blue[0].Name, blue[0].Tag, blue[0].RetryCount, blue[0].Method},
		[]interface{}{"b1", "blue", int32(1), "PULL"})
	left := time.Until(blue[0].ETA)
	is("a lease's end in a minute", left > 50*time.Second && left <= time.Minute, true)

	oldest := byTag(c, queue, 10, "")
	is("the oldest tag", payloads(oldest), []string{"first\x00\xff", "fifth"})
	untagged := byTag(c, queue, 10, "")
	is("untagged as the oldest", payloads(untagged), []string{"fourth"})
	is("untagged", untagged[0].Tag, "")
	is("nothing left", len(byTag(c, queue, 10, "")), 0)
	is("nothing left", len(byTag(c, queue, 10, "red")), 0)

	must(taskqueue.DeleteMulti(c, append(blue, oldest...), queue))
	must(taskqueue.Delete(c, untagged[0], queue))
	is("what is left", statistics(c, queue).Tasks, 1)
}

// leases moves a lease's end, gives a task back, loses a lease, and purges.
func leases(c context.Context, queue string) {
	for _, payload := range []string{"a", "b", "c"} {
		add(c, queue, &taskqueue.Task{Method: "PULL", Payload: []byte(payload)})
	}
	held := lease(c, queue, 2)
	is("at most two, oldest first", payloads(held), []string{"a", "b"})

	before := *held[0]
	must(taskqueue.ModifyLease(c, held[0], queue, 3600))
	is("a later end", held[0].ETA.Sub(before.ETA) > 50*time.Minute, true)
	refused(taskqueue.ModifyLease(c, &before, queue, 60), "TASK_LEASE_EXPIRED")

	must(taskqueue.ModifyLease(c, held[1], queue, 0))
	again := lease(c, queue, 10)
	is("what was given back is behind the others", payloads(again), []string{"c", "b"})
	is("its leases", again[1].RetryCount, int32(2))
	refused(taskqueue.ModifyLease(c, held[1], queue, 60), "TASK_LEASE_EXPIRED")
	must(taskqueue.ModifyLease(c, again[1], queue, 60))

	stats := statistics(c, queue)
	is("tasks", stats.Tasks, 3)
	is("in flight", stats.InFlight, 3)
	is("leased in the last minute", stats.Executed1Minute, 4)
	is("the oldest eta", stats.OldestETA.After(time.Now()), true)
	must(taskqueue.Delete(c, again[0], queue))
	must(taskqueue.Purge(c, queue))
	stats = statistics(c, queue)
	is("tasks", stats.Tasks, 0)
	is("the oldest eta of none", stats.OldestETA.IsZero(), true)
}

// names adds under names that are taken, or were.
func names(c context.Context, queue string) {
	task := func(name string) *taskqueue.Task {
		return &taskqueue.Task{Method: "PULL", Payload: []byte(name), Name: name}
	}
	add(c, queue, task("one"))
	_, err := taskqueue.Add(c, task("one"), queue)
	is("a name that is taken", err, taskqueue.ErrTaskAlreadyAdded)
	must(taskqueue.Delete(c, task("one"), queue))
	_, err = taskqueue.Add(c, task("one"), queue)
	is("a name that was taken", err, taskqueue.ErrTaskAlreadyAdded)

	added, err := taskqueue.AddMulti(c, []*taskqueue.Task{task("two"), task("one"), task("three")}, queue)
	each := err.(appengine.MultiError)
	is("all but the one", []interface{}{each[0], each[1], each[2]},
		[]interface{}{nil, taskqueue.ErrTaskAlreadyAdded, nil})
	is("names", added[0].Name+added[2].Name, "twothree")
	is("tasks", statistics(c, queue).Tasks, 2)

	err = taskqueue.DeleteMulti(c, []*taskqueue.Task{task("two"), task("one"), task("never"), task("three")}, queue)
	each = err.(appengine.MultiError)
	is("what can be deleted is", each[0] == nil && each[3] == nil, true)
	refused(each[1], "TOMBSTONED_TASK")
	is("an unknown name", each[2] != nil, true)
	is("tasks", statistics(c, queue).Tasks, 0)
}

// limits has tasks that may be leased so often: as their own options say, or else as the queue does, which says 3.
func limits(c context.Context, queue string) {
	own := func(limit int32) *taskqueue.RetryOptions { return &taskqueue.RetryOptions{RetryLimit: limit} }
	_, err := taskqueue.AddMulti(c, []*taskqueue.Task{
		{Method: "PULL", Payload: []byte("once"), Tag: "limit", RetryOptions: own(1)},
		{Method: "PULL", Payload: []byte("twice"), Tag: "limit", RetryOptions: own(2)},
		{Method: "PULL", Payload: []byte("as the queue"), Tag: "limit"},
		{Method: "PULL", Payload: []byte("four times"), Tag: "limit", RetryOptions: own(4)},
	}, queue)
	must(err)
	add(c, queue, &taskqueue.Task{
		Method: "PULL", Payload: []byte("one by one"), Tag: "limit",
		RetryOptions: &taskqueue.RetryOptions{RetryLimit: 2, AgeLimit: time.Hour, MinBackoff: time.Second},
	})
	counts := map[string]int32{}
	for round := 0; round < 6; round++ {
		tasks, err := taskqueue.LeaseByTag(c, 10, queue, 0, "limit")
		must(err)
		for _, task := range tasks {
			is("leases of "+string(task.Payload), task.RetryCount, counts[string(task.Payload)]+1)
			counts[string(task.Payload)] = task.RetryCount
		}
	}
	is("leases", counts, map[string]int32{"once": 1, "twice": 2, "as the queue": 3, "four times": 4, "one by one": 2})
	is("tasks", statistics(c, queue).Tasks, 0)
}

// refusals meets the errors of every call.
func refusals(c context.Context, queue string) {
	pull := &taskqueue.Task{Method: "PULL", Payload: []byte("x"), Name: "x"}
	_, err := taskqueue.Add(c, pull, "nowhere")
	refused(err, "UNKNOWN_QUEUE")
	_, err = taskqueue.Add(c, &taskqueue.Task{Path: "/push", Method: "POST"}, queue)
	refused(err, "INVALID_QUEUE_MODE")
	_, err = taskqueue.Add(c, &taskqueue.Task{Method: "PULL", Payload: []byte("x"), Name: "no name"}, queue)
	refused(err, "INVALID_TASK_NAME")
	_, err = taskqueue.Add(c, &taskqueue.Task{Method: "PULL", Payload: []byte("x"), Delay: 31 * 24 * time.Hour}, queue)
	refused(err, "INVALID_ETA")
	_, err = taskqueue.Add(c, &taskqueue.Task{Method: "PULL", Payload: make([]byte, 1<<20)}, queue)
	refused(err, "TASK_TOO_LARGE")
	_, err = taskqueue.Add(c, &taskqueue.Task{Method: "PULL", Payload: []byte("x"), Tag: strings.Repeat("t", 501)}, queue)
	refused(err, "INVALID_TAG")
	_, err = taskqueue.AddMulti(c, []*taskqueue.Task{pull, {Method: "PULL", Payload: []byte("x"), Name: "no name"}}, queue)
	each := err.(appengine.MultiError)
	refused(each[0], "SKIPPED")
	refused(each[1], "INVALID_TASK_NAME")
	is("none was added", statistics(c, queue).Tasks, 0)

	_, err = taskqueue.Lease(c, 1, "nowhere", 60)
	refused(err, "UNKNOWN_QUEUE")
	_, err = taskqueue.Lease(c, 1, queue, 604801)
	refused(err, "INVALID_REQUEST")
	_, err = taskqueue.Lease(c, 1001, queue, 60)
	refused(err, "INVALID_REQUEST")
	refused(taskqueue.ModifyLease(c, pull, queue, 60), "UNKNOWN_TASK")
	refused(taskqueue.Purge(c, "nowhere"), "UNKNOWN_QUEUE")
	is("the tasks of an unknown queue", statistics(c, "nowhere").Tasks, 0)
}

// ticket shows that the environment's ticket is the secret that the server asks for, if it was run with that one.
func ticket(c context.Context, queue string) {
	task, err := taskqueue.Add(c, &taskqueue.Task{Method: "PULL", Payload: []byte("x")}, queue)
	if os.Getenv("GAE_SERVICE") != "trusted" {
		is("refused", err != nil && strings.Contains(err.Error(), "API error"), true)
		return
	}
	must(err)
	must(taskqueue.Delete(c, task, queue))
}

func add(c context.Context, queue string, task *taskqueue.Task) *taskqueue.Task {
	added, err := taskqueue.Add(c, task, queue)
	must(err)
	return added
}

func lease(c context.Context, queue string, most int) []*taskqueue.Task {
	tasks, err := taskqueue.Lease(c, most, queue, 60)
	must(err)
	return tasks
}

func byTag(c context.Context, queue string, most int, tag string) []*taskqueue.Task {
	tasks, err := taskqueue.LeaseByTag(c, most, queue, 60, tag)
	must(err)
	return tasks
}

func statistics(c context.Context, queue string) taskqueue.QueueStatistics {
	stats, err := taskqueue.QueueStats(c, []string{queue})
	must(err)
	return stats[0]
}

func payloads(tasks []*taskqueue.Task) []string {
	found := []string{}
	for _, task := range tasks {
		found = append(found, string(task.Payload))
	}
	return found
}

func is(what string, found, wanted interface{}) {
	if !reflect.DeepEqual(found, wanted) {
		panic(fmt.Sprintf("%s: %#v, and not %#v", what, found, wanted))
	}
}

func refused(err error, code string) {
	if err == nil || !strings.Contains(err.Error(), code) {
		panic(fmt.Sprintf("not %s: %v", code, err))
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
