# Read by the scripts beside it, with their words: a server that listens to others must ask for a login.
case " $* " in
  *" --host"* | *" -h "*)
    case " $* " in
      *" --app-name basic-auth "*) ;;
      *) echo "error: --host lets others change runs without a login: add --app-name basic-auth (mlflow/README.md)" >&2; exit 2 ;;
    esac ;;
esac
