import com.google.appengine.api.NamespaceManager;
import com.google.appengine.api.taskqueue.InvalidQueueModeException;
import com.google.appengine.api.taskqueue.LeaseOptions;
import com.google.appengine.api.taskqueue.Queue;
import com.google.appengine.api.taskqueue.QueueFactory;
import com.google.appengine.api.taskqueue.QueueStatistics;
import com.google.appengine.api.taskqueue.TaskAlreadyExistsException;
import com.google.appengine.api.taskqueue.TaskHandle;
import com.google.appengine.api.taskqueue.TaskOptions;
import java.io.IOException;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;
import javax.servlet.http.HttpServlet;
import javax.servlet.http.HttpServletRequest;
import javax.servlet.http.HttpServletResponse;

/**
 * A web application as an App Engine shop has it, in Google's runtime: {@code /story} runs one on the pull queue
 * of that name, {@code /stranger} calls with a ticket that is no token; both check every answer, and respond with "ok".
 */
public final class Story extends HttpServlet {
  private static final long HOUR = 3_600_000;
  private static final byte[] OCTETS = {0, 1, (byte) 0xff};
  private static final byte[] BYTES_TAG = "gr\u00fcn".getBytes(StandardCharsets.UTF_8);

  @Override
  protected void doGet(HttpServletRequest request, HttpServletResponse response) throws IOException {
    try {
      Queue queue = QueueFactory.getQueue("story");
      if (request.getRequestURI().equals("/story")) {
        adds(queue);
      } else {
        fails(SecurityException.class, () -> queue.add(named("one").payload("1")));
        fails(SecurityException.class, () -> queue.leaseTasks(60, TimeUnit.SECONDS, 1));
      }
      response.getWriter().print("ok");
    } catch (Exception | AssertionError error) {
      response.setStatus(500);
      error.printStackTrace(new PrintWriter(response.getWriter(), true));
    }
  }

  private static void adds(Queue queue) throws Exception {
    TaskHandle one = queue.add(named("one").tag("red").payload(OCTETS));
    is("a name", one.getName(), "one");
    NamespaceManager.set("tenant");
    List<TaskHandle> many =
        queue.add(
            Arrays.asList(
                named("two").tag("blue").payload("second"),
                named("three").tag("blue").payload(new byte[0]),
                named("four").payload("fourth"),
                named("five").tag(BYTES_TAG).payload("fifth")));
    is("names", names(many), Arrays.asList("two", "three", "four", "five"));
    NamespaceManager.set("");
    TaskHandle chosen = queue.addAsync(pull().param("key", "a value")).get();
    is("a chosen name", chosen.getName().isEmpty(), false);
    queue.add(pull().payload("later").taskName("later").tag("red").countdownMillis(HOUR));
    is("tasks", queue.fetchStatistics().getNumTasks(), 7);
    leases(queue, chosen);
  }

  private static void leases(Queue queue, TaskHandle chosen) throws Exception {
    List<TaskHandle> blue = queue.leaseTasksByTag(60, TimeUnit.SECONDS, 10, "blue");
    is("blue", names(blue), Arrays.asList("two", "three"));
    is("payload", new String(blue.get(0).getPayload(), StandardCharsets.UTF_8), "second");
    is("an empty payload", blue.get(1).getPayload().length, 0);
    is("leases", blue.get(0).getRetryCount(), 1);
    is("tag", blue.get(0).getTag(), "blue");

    LeaseOptions oldest =
        LeaseOptions.Builder.withLeasePeriod(60_500, TimeUnit.MILLISECONDS).countLimit(100).groupByTag();
    List<TaskHandle> red = queue.leaseTasks(oldest);
    is("the oldest tag", names(red), Arrays.asList("one"));
    is("octets", Arrays.equals(red.get(0).getPayload(), OCTETS), true);

    List<TaskHandle> any = queue.leaseTasks(60, TimeUnit.SECONDS, 1);
    is("one task", names(any), Arrays.asList("four"));
    is("no tag", any.get(0).getTag(), null);
    List<TaskHandle> green = queue.leaseTasksByTagBytesAsync(60, TimeUnit.SECONDS, 1, BYTES_TAG).get();
    is("a tag of bytes", names(green), Arrays.asList("five"));
    is("its bytes", Arrays.equals(green.get(0).getTagAsBytes(), BYTES_TAG), true);

    TaskHandle longer = queue.modifyTaskLease(green.get(0), 1, TimeUnit.HOURS);
    is("a lease that goes on twice", queue.modifyTaskLease(longer, 2, TimeUnit.HOURS).getName(), "five");
    queue.modifyTaskLease(any.get(0), 0, TimeUnit.SECONDS);
    List<TaskHandle> rest = queue.leaseTasks(60, TimeUnit.SECONDS, 1000);
    is("what was given back is last", names(rest), Arrays.asList(chosen.getName(), "four"));
    is("its leases", rest.get(1).getRetryCount(), 2);
    fails(IllegalStateException.class, () -> queue.modifyTaskLease(any.get(0), 1, TimeUnit.HOURS));
    is("parameters", rest.get(0).extractParams().get(0).getValue(), "a value");
    is("nothing left", queue.leaseTasks(60, TimeUnit.SECONDS, 1000).size(), 0);
    ends(queue, blue);
  }

  private static void ends(Queue queue, List<TaskHandle> blue) {
    try {
      queue.add(Arrays.asList(named("six").payload("6"), named("two").payload("2")));
      throw new AssertionError("a name that is taken was added");
    } catch (TaskAlreadyExistsException error) {
      is("names that are taken", error.getTaskNames(), Arrays.asList("two"));
    }
    is("a deletion", queue.deleteTask(blue.get(0)), true);
    is("a deletion of what is gone", queue.deleteTask("two"), false);
    is("two deletions", queue.deleteTask(blue), Arrays.asList(false, true));
    fails(TaskAlreadyExistsException.class, () -> queue.add(named("two").payload("2")));

    Queue nowhere = QueueFactory.getQueue("nowhere");
    fails(IllegalStateException.class, () -> nowhere.add(named("one").payload("1")));
    fails(IllegalStateException.class, () -> nowhere.leaseTasks(60, TimeUnit.SECONDS, 1));
    fails(InvalidQueueModeException.class, () -> queue.add(TaskOptions.Builder.withUrl("/push").etaMillis(HOUR)));

    QueueStatistics before = queue.fetchStatistics();
    is("tasks", before.getNumTasks(), 6);
    is("tasks under lease", before.getRequestsInFlight() >= 3, true);
    is("leased in the last minute", before.getExecutedLastMinute(), 7L);
    queue.purge();
    is("tasks", queue.fetchStatistics().getNumTasks(), 0);
    is("the oldest of none", queue.fetchStatistics().getOldestEtaUsec(), null);
  }

  private static TaskOptions pull() {
    return TaskOptions.Builder.withMethod(TaskOptions.Method.PULL);
  }

  private static TaskOptions named(String name) {
    return pull().taskName(name).etaMillis(HOUR);
  }

  private static List<String> names(List<TaskHandle> tasks) {
    List<String> names = new ArrayList<>();
    tasks.forEach(task -> names.add(task.getName()));
    return names;
  }

  private static void is(String what, Object found, Object wanted) {
    if (!Objects.equals(found, wanted)) {
      throw new AssertionError(what + ": " + found + ", and not " + wanted);
    }
  }

  private static void fails(Class<? extends Exception> how, Callable<?> call) {
    try {
      call.call();
    } catch (Exception error) {
      if (how.isInstance(error)) {
        return;
      }
      throw new AssertionError("not a " + how.getName(), error);
    }
    throw new AssertionError("no " + how.getName());
  }
}
